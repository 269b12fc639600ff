"""What is measured on predictions, and the rows behind them."""

from nearwise.conditions import require_extra

require_extra("A result of the lab", "report", "matplotlib")
