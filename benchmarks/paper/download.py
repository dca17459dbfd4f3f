def fetch_all(folder):
    raise NotImplementedError
