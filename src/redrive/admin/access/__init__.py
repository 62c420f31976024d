"""Who may come in, and what they may do there. It knows nothing of HTTP: a server asks the `Authenticator`.

| module          | what                                                                             |
|-----------------|----------------------------------------------------------------------------------|
| `roles`         | roles, acts, and who may do which act to which queue                             |
| `keys`          | API keys: made once, shown once, kept as digests                                 |
| `sessions`      | browsers that are signed in, and links by which one signs in once                |
| `secrets`       | the random part of keys, cookies and links, and its digest                       |
| `tokens`        | JWTs of an identity provider (needs the extra `admin`)                           |
| `jwks`          | the public keys of that provider, from a file or a URL                           |
| `throttle`      | who guesses waits                                                                |
| `csrf`          | is a request made by our own pages, or by another site in the browser of someone |
| `authenticator` | all of these as one question: who is this?                                       |
| `settings`      | what the environment says of it                                                  |
"""
