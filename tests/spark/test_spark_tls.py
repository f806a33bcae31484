"""The data source over TLS with client certificates and a token: driver and executors both connect."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tls_files import Authority

from pydanube.spark import DanubeDataSource
from pydanube.testing import broker_thread


def test_rows_are_written_and_read_with_a_client_certificate_and_a_token(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair, mine = authority.issue("broker"), authority.issue("spark", "spark.example")
    spark.dataSource.register(DanubeDataSource)
    with broker_thread(
        tmp_path / "data",
        tls_cert_file=pair.cert_file,
        tls_key_file=pair.key_file,
        tls_client_ca_file=authority.ca_file,
        tls_client_certificates="required",
        auth=True,
    ) as secured:
        assert secured.url.startswith("danubes://")
        options = {
            "servers": secured.url,
            "token": secured.admin_key,
            "topic": "/default/secret",
            "tls.caFile": str(authority.ca_file),
            "tls.certFile": str(mine.cert_file),
            "tls.keyFile": str(mine.key_file),
        }
        rows = spark.createDataFrame([(b"one",), (b"two",)], "payload binary")
        rows.write.format("danube").options(**options).mode("append").save()
        read = spark.read.format("danube").options(**options).load()
        assert sorted(bytes(row.payload) for row in read.collect()) == [b"one", b"two"]
