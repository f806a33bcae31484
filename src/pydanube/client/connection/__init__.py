"""Connections to brokers: addresses, lookup of partition owners, requests and answers, keep-alive."""
