"""FlexCDC: changelog tables and plugins over the change log. Follows document 003."""
