"""Videos processed by Celery: retries wait in RabbitMQ, and what cannot be processed is kept."""
