"""Reading topics: planning on the driver, ranges read by tasks as Arrow record batches."""
