-- ARGV: id, fence, name, record (JSON). Returns 0, or -1 when the lease is lost.
if not holds(ARGV[1], ARGV[2]) then
  return -1
end
redis.call('HSET', task_key(ARGV[1]) .. ':artifacts', ARGV[3], ARGV[4])
return 0
