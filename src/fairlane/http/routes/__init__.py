"""Routes that are not declared as operations, one module per noun."""
