"""All benchmarks: ``python -m benchmarks``."""

from benchmarks import bench_canal, bench_canal_e2e, bench_clusters, bench_decode, bench_e2e, bench_snapshot

bench_decode.main([])
bench_e2e.main([])
bench_snapshot.main([])
bench_canal.main([])
bench_canal_e2e.main([])
bench_clusters.main([])
