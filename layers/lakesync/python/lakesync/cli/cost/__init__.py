"""What a stack costs in a month: a description, what it uses, and the price of that."""
