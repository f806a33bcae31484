"""Who callers are, what they may do, and what is recorded of it: the roles, bindings and API keys of the metadata, in
memory on every broker, and audit events.

Lives here      records (the keys and values in the metadata), security_store (follows and changes them)
                administration (what callers see and change of them)
                authentication (who a caller is; slows down who fails often), over api_keys, tokens (JWT), jwks (their
                keys), certificate_rules; first_key (made when there is none)
                identity_sessions (ends connections whose credentials ended or were revoked)
                visibility (what callers may see), access_review (asks again when rules change)
                audit_operations (decides what is an audit event), audit (collects and writes them), over audit_file and
                audit_topic
May import      model, codec, core, runtime, metadata, the registry; audit_topic also partitions
Flows through   a listener hands over credentials and gets an identity; rules change and open sessions are checked again
Never           a secret in the metadata, in a message, a log line or an event: of an API key only a hash is stored
"""
