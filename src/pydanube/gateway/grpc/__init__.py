"""The Danube gRPC API, for existing Danube clients and tools."""
