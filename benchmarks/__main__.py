"""All benchmarks: ``python -m benchmarks``."""

from benchmarks import bench_clusters, bench_decode, bench_e2e

bench_decode.main([])
bench_e2e.main([])
bench_clusters.main([])
