import os

from grelmicro.coordination import Lock, LockConfig

os.environ["GREL_LOCK_STOCK_LEASE_DURATION"] = "20"
os.environ["SHOP_LEASE_DURATION"] = "30"

print(Lock("stock", lease_duration=10).config.lease_duration)
print(Lock("stock").config.lease_duration)
print(Lock("stock", env_prefix="SHOP_").config.lease_duration)
print(Lock("stock", env_load=False).config.lease_duration)
ready = LockConfig(lease_duration=40)
print(Lock.from_config("stock", ready).config.lease_duration)
# Prints:
#   10.0
#   20.0
#   30.0
#   60.0
#   40.0
