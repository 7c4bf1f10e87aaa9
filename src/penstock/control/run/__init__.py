"""`penstock run`, `extract`, `load`, `serve`: the processes of a pipeline and their supervisor."""
