"""The page in the browser, and the HTTP API of the page.

One file per resource: parse the request, call `Runtime`, render the result. The journal stores everything before the
server acknowledges a request, so a page may close at any moment and a new page shows the same state.
"""
