"""What a user gives: tables, columns, images, labels; checked and encoded."""
