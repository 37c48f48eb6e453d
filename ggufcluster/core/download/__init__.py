"""Decisions of the downloader: which files, which bytes, what is trusted."""
