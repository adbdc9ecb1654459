"""Gymnasium and dm_env environments as environments of ours."""
