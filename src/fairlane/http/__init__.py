"""Serve the operations over HTTP: routes, requests and responses. Decisions are made elsewhere."""
