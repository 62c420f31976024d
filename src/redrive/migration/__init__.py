"""Migration of a live queue: change its type or arguments without losing a message.

steps       what a migration does, step by step, and its record: pure
plan        what a migration would do
journal     the record of a migration, kept in a queue of the broker itself
calls       the broker calls of the steps
transfer    moves messages from one queue to another: publish, confirm, ack
monitor     watches producers and consumers of a queue
run         performs the steps, and resumes them after a crash
"""
