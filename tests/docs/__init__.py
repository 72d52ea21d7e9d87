"""The documentation: what its pages say is run, and what there is, is on a page."""
