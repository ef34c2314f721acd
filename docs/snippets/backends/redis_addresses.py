from grelmicro.providers.redis import RedisProvider

RedisProvider("redis://user:secret@redis.example:6379/0")
RedisProvider("rediss://redis.example:6380/0?ssl_ca_certs=/etc/ssl/ca.pem")
RedisProvider("unix:///run/redis.sock")
RedisProvider("redis+sentinel://s1,s2,s3/mymaster/0?sentinel_password=secret")
RedisProvider("redis+cluster://n1:6379,n2:6379,n3:6379")
RedisProvider(host="redis.example", port=6380, password="secret")
RedisProvider()  # REDIS_URL, or REDIS_HOST, REDIS_PORT, …
