from backends.deepseek_v4.ops.indexer_plan.reference import IndexerPlan, indexer_max_len, indexer_plan

__all__ = ["IndexerPlan", "indexer_max_len", "indexer_plan"]
