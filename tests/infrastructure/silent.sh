#!/bin/sh
# A program that says nothing, for as long as one likes to wait.
exec sleep 60
