"""What is measured on predictions, and the rows behind them."""
