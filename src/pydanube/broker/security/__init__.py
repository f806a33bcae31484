"""Who callers are, and what they may do: the roles, bindings and API keys of the metadata, in memory on every broker.

Lives here      records (the keys and values in the metadata), security_store (follows and changes them)
                administration (what callers see and change of them)
                authentication (who a caller is), over api_keys, tokens (JWT), jwks (their keys), certificates;
                failures (slows down who fails often), first_key (made when there is none)
                identity_sessions (ends connections whose credentials ended or were revoked)
May import      model, core, runtime, metadata
Flows through   a listener hands over credentials and gets an identity; rules change and open sessions are checked again
Never           a secret in the metadata, in a message or in a log line: of an API key only a hash is stored
"""
