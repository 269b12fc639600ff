"""What is measured on predictions, and their rows."""

from nearwise.conditions import require_extra

require_extra("A result of the lab", "report", "matplotlib")
