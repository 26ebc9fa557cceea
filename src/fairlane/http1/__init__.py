"""HTTP/1.1 from the caller's side: messages without I/O, and two drivers, blocking and asyncio.

The Python clients and everything that goes out behind the guard send their requests through here.
Nothing here follows a redirect, reads a proxy from the environment, keeps a cookie or unpacks a
body.
"""
