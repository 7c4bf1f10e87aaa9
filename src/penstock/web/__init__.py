"""The web interface: pages, JSON and metrics over `control`. It shows; `control` knows."""
