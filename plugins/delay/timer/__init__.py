"""Messages with a time of their own: timer log, wheel, and what moves messages in and out."""
