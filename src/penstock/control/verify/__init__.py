"""`penstock verify`: comparing the rows of source and target, and repairing them."""
