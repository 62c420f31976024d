"""The REST API, and the ASGI application that serves it together with the console."""
