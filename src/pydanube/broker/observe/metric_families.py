"""The metrics of the broker as a whole, read from its parts when they are asked for. docs/metrics.md lists them.

Nothing here goes through topics or partitions one by one: the number of samples does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.broker.partitions.broker_slices import SliceCounts
from pydanube.broker.partitions.partition_table import PartitionTable
from pydanube.broker.registry.registry import Registry
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.core.histograms import Histogram
from pydanube.model.metrics import HistogramValue, MetricFamily, MetricKind, Sample
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.process import process_usage
from pydanube.storage.tail_cache import TailCache
from pydanube.storage.wal import LogWriter

_ENDED: Final = ("dead_lettered", "dropped", "evicted", "expired")
_REFUSED: Final = ("Full", "Invalid", "StaleEpoch", "Unavailable")
"""Shown also while they are 0; other reasons once they have happened."""
_POLICIES: Final = ("enforce", "warn")
_AUDITED: Final = (
    ("administration", "done"),
    ("administration", "failed"),
    ("refused", "denied"),
    ("security", "done"),
    ("security", "failed"),
    ("security", "unauthenticated"),
    ("session", "denied"),
    ("session", "done"),
)


@dataclass(eq=False)
class MetricSources:
    """The parts of a broker that metrics are read from."""

    metrics: BrokerMetrics
    registry: Registry
    open_partitions: PartitionTable
    writer: LogWriter
    cache: TailCache
    tiers: ObjectStorage | None
    slice_counts: Callable[[], SliceCounts] = SliceCounts

    def families(self, info: Mapping[str, str], started_at_us: int, is_writable: bool) -> list[MetricFamily]:
        """Return all families. `info` are the labels of danube_broker_info."""
        return [
            _gauge("danube_broker_info", "Version, name and cluster of this broker; always 1.", [Sample(1, info)]),
            _gauge("danube_broker_writable", "1 if this broker stores what it is sent, 0 if it cannot.", is_writable),
            _gauge("danube_broker_topics_owned", "Topics of this broker.", self.registry.topic_count),
            _gauge("danube_broker_open_partitions", "Partitions that are open.", len(self.open_partitions)),
            *self._publishing(),
            *self._dispatching(),
            *self._logging(),
            *self._caching(),
            *self._tiering(),
            *self._taking_over(),
            *self._quotas(),
            *self._listening(),
            *self._auditing(),
            _seconds("danube_event_loop_delay", "How late the event loop was.", self.metrics.loop_delay),
            *_process(started_at_us),
        ]

    def _taking_over(self) -> Iterable[MetricFamily]:
        metrics, name = self.metrics, "danube_takeover"
        yield _counter(f"{name}_partitions_total", "Partitions taken over from lost brokers.", metrics.taken_over)
        yield _counter(f"{name}_offsets_total", "Offsets that this gave up.", metrics.given_up_offsets)

    def _publishing(self) -> Iterable[MetricFamily]:
        metrics = self.metrics
        name = "danube_publish"
        yield _counter(f"{name}_batches_total", "Batches that reached their ack level.", metrics.published_batches)
        yield _counter(f"{name}_messages_total", "Messages in these batches.", metrics.published_messages)
        yield _counter(f"{name}_bytes_total", "Bytes of these batches.", metrics.published_bytes)
        yield _counter(
            f"{name}_duplicate_batches_total",
            "Batches that had been stored before, and were not again.",
            metrics.duplicates,
        )
        yield _counter(
            f"{name}_refused_batches_total",
            "Batches that were not stored, by the error that their producers got.",
            _by_label("reason", {**dict.fromkeys(_REFUSED, 0), **metrics.refused}),
        )
        yield MetricFamily(
            f"{name}_seconds",
            MetricKind.HISTOGRAM,
            "Time from appending a batch until it has reached its ack level.",
            [Sample(_value_of(one), {"ack_level": str(level)}) for level, one in metrics.publish_time.items()],
        )
        pending = self.writer.pending_bytes
        yield _gauge(f"{name}_pending_bytes", "Bytes that were appended and are not written or synced yet.", pending)
        yield _counter(
            "danube_schema_violations_total",
            "Batches that did not fit the schema of their topic; the policy `enforce` refuses them.",
            _by_label("policy", {**dict.fromkeys(_POLICIES, 0), **metrics.schema_violations}),
        )

    def _dispatching(self) -> Iterable[MetricFamily]:
        metrics, name = self.metrics, "danube_dispatch"
        yield _counter(
            f"{name}_deliveries_total", "Deliveries: batches, or parts of them, to a consumer.", metrics.deliveries
        )
        yield _counter(
            f"{name}_messages_total", "Messages delivered, redeliveries included.", metrics.delivered_messages
        )
        yield _counter(f"{name}_bytes_total", "Bytes delivered.", metrics.delivered_bytes)
        yield _counter(f"{name}_redelivered_messages_total", "Messages delivered again.", metrics.redelivered)
        yield _seconds(name, "Time from the append of a message to its first delivery.", metrics.dispatch_time)
        yield _counter("danube_acked_messages_total", "Messages that consumers acked.", metrics.acked)
        yield _counter(
            "danube_ended_messages_total",
            "Messages that subscriptions ended without an ack.",
            _by_label("reason", {**dict.fromkeys(_ENDED, 0), **metrics.ended}),
        )

    def _quotas(self) -> Iterable[MetricFamily]:
        yield _counter(
            "danube_quota_throttled_seconds_total",
            "Time that callers waited for the rates of their quotas.",
            _by_label("kind", self.metrics.throttled_s),
        )
        yield _counter(
            "danube_quota_refused_total",
            "What was refused because a quota was used up.",
            _by_label("kind", self.metrics.quota_refused),
        )

    def _logging(self) -> Iterable[MetricFamily]:
        writer, metrics = self.writer, self.writer.metrics
        yield _counter("danube_log_appended_bytes_total", "Bytes ever written to the log.", writer.appended_bytes)
        yield _counter("danube_log_records_total", "Records written.", metrics.records)
        yield _seconds("danube_log_write", "Time of a write of a group of records.", metrics.write_time)
        yield _seconds("danube_log_sync", "Time of a sync of a group of records.", metrics.sync_time)
        yield _counter("danube_log_failures_total", "How often the disk of the log failed.", metrics.failures)
        yield _gauge("danube_log_bytes", "Bytes of the log on disk.", writer.stored_bytes)
        yield _gauge("danube_log_files", "Files of the log.", writer.files)

    def _caching(self) -> Iterable[MetricFamily]:
        caches = {"tail": (self.cache.hits, self.cache.misses)}
        sizes = {"tail": self.cache.bytes}
        if self.tiers is not None:
            found = self.tiers.history.caches
            caches |= {name: (cache.hits, cache.misses) for name, cache in found.items()}
            sizes["objects"] = found["objects"].weight
        yield _counter(
            "danube_cache_requests_total",
            "Reads by cache (tail: newest batches; objects: ranges of segments; footers) and result.",
            [
                Sample(count, {"cache": name, "result": result})
                for name, counts in caches.items()
                for result, count in zip(("hit", "miss"), counts, strict=True)
            ],
        )
        yield _gauge("danube_cache_bytes", "Bytes held by a cache.", _by_label("cache", sizes))

    def _tiering(self) -> Iterable[MetricFamily]:
        if self.tiers is None:
            return
        uploader, name = self.tiers.uploader, "danube_upload"
        yield _counter(f"{name}_objects_total", "Objects uploaded to object storage.", uploader.objects_made)
        yield _counter(f"{name}_bytes_total", "Bytes uploaded to object storage.", uploader.uploaded_bytes)
        yield _counter(f"{name}_failures_total", "Failed uploads.", uploader.failures)
        yield _gauge(f"{name}_failing", "1 while uploads fail.", uploader.failure is not None)
        yield _gauge(f"{name}_waiting_bytes", "Bytes that are in the log only.", uploader.waiting_bytes)
        unreadable = len(uploader.unreadable)
        yield _gauge(f"{name}_unreadable_partitions", "Partitions whose log is damaged.", unreadable)
        slices, name = self.slice_counts(), "danube_slice"
        yield _counter(f"{name}_puts_total", "Puts of slices, failed ones too.", slices.puts)
        yield _counter(f"{name}_bytes_total", "Bytes of slices that were put.", slices.put_bytes)
        yield _counter(f"{name}_failures_total", "Failed puts of slices.", slices.put_failures)
        yield _gauge(f"{name}_failing", "1 while slices cannot be put.", slices.is_failing)
        yield _gauge(f"{name}_waiting_bytes", "Bytes that wait for the object store.", slices.waiting_bytes)
        unlisted = slices.unlisted_bytes
        yield _gauge(f"{name}_unlisted_bytes", "Bytes of messages in slices that the catalog does not list.", unlisted)

    def _listening(self) -> Iterable[MetricFamily]:
        name, listeners = "danube_connections", self.metrics.listeners
        for kind, suffix, attribute, about in (
            (MetricKind.GAUGE, "", "connections", "Connections, on the gRPC listeners running calls"),
            (MetricKind.COUNTER, "_accepted_total", "accepted", "Connections or calls accepted"),
            (MetricKind.COUNTER, "_refused_total", "refused", "Connections or calls refused at a limit"),
            (MetricKind.COUNTER, "_invalid_total", "invalid", "Connections that broke the rules of the protocol"),
        ):
            samples = _by_label("listener", {one: getattr(counts, attribute) for one, counts in listeners.items()})
            yield MetricFamily(f"{name}{suffix}", kind, f"{about}, by listener.", samples)
        answers = _by_label("status", {"200": 0, **self.metrics.http_answers})
        yield _counter("danube_http_answers_total", "Answers of the HTTP listener, by status.", answers)

    def _auditing(self) -> Iterable[MetricFamily]:
        counted = {**dict.fromkeys(_AUDITED, 0), **self.metrics.audit_events}
        yield _counter(
            "danube_audit_events_total",
            "Audit events, by kind and outcome.",
            [Sample(value, {"kind": kind, "outcome": outcome}) for (kind, outcome), value in counted.items()],
        )
        yield _counter(
            "danube_audit_events_lost_total",
            "Audit events that could not be written.",
            self.metrics.audit_lost,
        )


def _process(started_at_us: int) -> Iterable[MetricFamily]:
    """Return what client libraries of Prometheus say about a process, under their names."""
    usage = process_usage()
    yield _counter("process_cpu_seconds_total", "Processor time in user and system mode.", usage.cpu_s)
    yield _gauge("process_start_time_seconds", "When the broker started, since 1970.", started_at_us / MICROSECONDS)
    yield _gauge("process_open_fds", "Open files and sockets.", usage.open_files)
    yield _gauge("process_max_fds", "How many of them may be open.", usage.open_files_max)
    if usage.resident_bytes:
        yield _gauge("process_resident_memory_bytes", "Memory in RAM.", usage.resident_bytes)
        yield _gauge("process_virtual_memory_bytes", "Virtual memory.", usage.virtual_bytes)


def _by_label(label: str, values: Mapping[str, float]) -> list[Sample]:
    return [Sample(value, {label: name}) for name, value in values.items()]


def _counter(name: str, about: str, value: float | list[Sample]) -> MetricFamily:
    return MetricFamily(name, MetricKind.COUNTER, about, value if isinstance(value, list) else [Sample(value)])


def _gauge(name: str, about: str, value: float | list[Sample]) -> MetricFamily:
    return MetricFamily(name, MetricKind.GAUGE, about, value if isinstance(value, list) else [Sample(value)])


def _seconds(name: str, about: str, histogram: Histogram) -> MetricFamily:
    """Return the family of a histogram of microseconds, `name` in seconds."""
    return MetricFamily(f"{name}_seconds", MetricKind.HISTOGRAM, about, [Sample(_value_of(histogram))])


def _value_of(histogram: Histogram) -> HistogramValue:
    bounds = [*(bound / MICROSECONDS for bound in histogram.bounds), float("inf")]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    return HistogramValue(buckets, histogram.total / MICROSECONDS)
