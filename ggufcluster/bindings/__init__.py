"""What `import ggufcluster` offers beside the command line; it prints nothing."""
