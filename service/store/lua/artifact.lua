-- ARGV: id, fence, name, record (JSON), event data (JSON). Returns 0, or -1 when the lease is lost.
local id = ARGV[1]
if not holds(id, ARGV[2]) then
  return -1
end
redis.call('HSET', task_key(id) .. ':artifacts', ARGV[3], ARGV[4])
offer(id, 'artifact', ARGV[5], now_ms())
return 0
