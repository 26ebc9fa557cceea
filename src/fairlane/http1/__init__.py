"""HTTP/1.1 for clients: messages without I/O, and two drivers, blocking and asyncio.

The Python clients and all outbound requests behind the guard use this package. It follows no
redirects, reads no proxy from the environment, keeps no cookies and decompresses no bodies.
"""
