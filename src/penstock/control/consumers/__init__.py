"""`penstock consume`, `consumers` and `flexcdc`: changes for Python classes."""
