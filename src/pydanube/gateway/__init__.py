"""LISTENERS. How clients reach the broker: each package here is one protocol on one port.

Lives here      listeners, sessions, limits for unknown clients (`door`: what is the same for all); translation of a
                protocol to calls of `broker.Broker`
May import      broker, operations, codec, formats, runtime, model, and from core the identity of a caller (access)
Flows through   bytes become names, batches and principals; answers and errors become bytes
Never           decisions about topics or messages; state that must outlive a connection
"""
