-- ARGV: id, fence. Returns whether cancelling was asked for (0 or 1), or -1 when the lease is lost.
local id = ARGV[1]
if not holds(id, ARGV[2]) then
  return -1
end
redis.call('ZADD', LEASES, whole(now_ms() + LEASE_MS), id)
return redis.call('HEXISTS', task_key(id), 'cancel')
