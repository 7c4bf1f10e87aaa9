"""`penstock stage`: changefeeds that are received, staged and applied."""
