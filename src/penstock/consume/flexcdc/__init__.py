"""FlexCDC: changelog tables and plugins over the change log, as FlexCDC has them."""
