from backends.deepseek_v4.ops.prefill_chunks.reference import ChunkRows, PrefillChunk, chunk_rows, prefill_chunks

__all__ = ["ChunkRows", "PrefillChunk", "chunk_rows", "prefill_chunks"]
