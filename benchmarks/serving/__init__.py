"""Load on a server: what is asked (requests.py), who asks (load.py, a process of its own), who serves (server.py)."""
