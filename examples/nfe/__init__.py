"""Electronic invoices (NF-e): each is stored with its event in one transaction, and a worker makes its XML."""
