"""The Danube gRPC API, for existing Danube clients and tools. Needs the extra `grpc`.

server          the two listeners: the data port and the admin port
front           accepts connections, counts them, ends TLS, and passes their bytes on to gRPC
services        which services there are, and on which port
producing       ProducerService: producers and their messages
consuming       ConsumerService: subscriptions, acks; consumer_stream is the stream of one consumer
discovery       Discovery and HealthCheck
resources       what the services of a listener share
schema_registry, storage, admin_cluster, admin_topics   the services, with topics (names of topics)
calls           how the methods of a service become handlers; limits of calls
request_intake  receives requests, and limits those that have arrived in part
errors          the error tree as statuses
messages        the messages, from the descriptor sets beside the .proto files
health          grpc.health.v1
reflection      grpc.reflection.v1 and v1alpha
"""

from .server import GrpcServer

__all__ = ["GrpcServer"]
