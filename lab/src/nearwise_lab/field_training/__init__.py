"""Training of neural fields."""

from nearwise_lab.field_training.config import FieldConfig
from nearwise_lab.field_training.run import reconstruction_errors, train_field

__all__ = ["FieldConfig", "reconstruction_errors", "train_field"]
