"""Redrive makes RabbitMQ messages survive failure."""

__version__ = "0.1.0.dev0"
