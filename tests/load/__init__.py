"""Load on the API process without a GPU: real server, real worker processes, engines that only take an H200's time."""
