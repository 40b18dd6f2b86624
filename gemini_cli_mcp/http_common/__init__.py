"""Shared by both HTTP servers: serving, authentication, access log and metrics."""
