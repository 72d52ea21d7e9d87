"""The page in the browser, and the HTTP API behind it.

Faces parse, call `Runtime`, render: one file per resource, everything through `Runtime`. Whatever a request is
acknowledged for stands in the journal before; a page may vanish at any moment, and the next one shows the same.
"""
