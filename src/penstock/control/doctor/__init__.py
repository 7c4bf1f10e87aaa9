"""`penstock doctor` and `penstock plan`: what would go wrong, found before anything runs."""
