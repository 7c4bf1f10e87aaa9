"""Published door to `penstock.feeds` for the user's module of changefeeds."""
